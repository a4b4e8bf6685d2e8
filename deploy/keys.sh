#!/bin/sh
# Write the keys and certificates of a server into this folder: sh keys.sh fl.example.org, or its IP
# address if it has no name.
#   ca.key ca.crt          the authority of the federation: sites get ca.crt, nobody gets ca.key
#   server.key server.pem  of nginx, for the name that the sites connect to
#   local.key local.pem    of the SuperLink, for connections within the server
# server.pem and local.pem last a year: run it again beside ca.key and ca.crt to renew them.
set -eu
umask 077
name=${1:?the name or IP address of the server is missing}
refuse() {
    echo "keys.sh: give a name or an IP address without https:// or a port, not '$name'" >&2
    exit 1
}
case $name in
    *:*:*) kind=IP ;;
    *[!0-9A-Za-z._*-]*) refuse ;;
    *[!0-9.]*) kind=DNS ;;
    *.*.*.*) kind=IP ;;
    *) kind=DNS ;;
esac
case $kind$name in IP*[!0-9A-Fa-f:.]*) refuse ;; esac
# A new authority beside half of the former one would lock out the sites, which have its ca.crt.
for pair in "ca.crt ca.key" "ca.key ca.crt"; do
    if [ -e "${pair% *}" ] && [ ! -e "${pair#* }" ]; then
        echo "keys.sh: ${pair% *} is here and ${pair#* } is missing; bring it back, or remove" \
            "${pair% *} to begin with a new authority, whose ca.crt every site needs" >&2
        exit 1
    fi
done
# Files are put here when all are made, so that a failure leaves no key without its certificate.
new=$(mktemp -d ./new.XXXXXX)
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
key="-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"
ca=.
if [ ! -e ca.key ]; then
    ca=$new
    openssl req -x509 $key -days 3650 -keyout "$new/ca.key" -out "$new/ca.crt" -subj "/CN=our-ca" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
fi
openssl req $key -keyout "$new/server.key" -out "$new/server.csr" -subj "/CN=$name"
printf "subjectAltName=%s:%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n" \
    "$kind" "$name" > "$new/server.cnf"
openssl x509 -req -in "$new/server.csr" -CA "$ca/ca.crt" -CAkey "$ca/ca.key" \
    -CAserial "$new/ca.srl" -CAcreateserial -days 365 -extfile "$new/server.cnf" -out "$new/server.pem"
openssl req -x509 $key -days 365 -keyout "$new/local.key" -out "$new/local.pem" \
    -subj "/CN=localhost" -addext "subjectAltName=DNS:localhost,IP:127.0.0.1"
[ -e ca.key ] || mv "$new/ca.key" "$new/ca.crt" .
for file in server.key server.pem local.key local.pem; do
    if [ -e "$file" ]; then
        cat "$new/$file" > "$file" # keeps its owner and mode, as containers need them
    else
        mv "$new/$file" .
    fi
done
