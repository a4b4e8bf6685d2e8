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
case $name in
    *:*) kind=IP ;;
    *[!0-9.]*) kind=DNS ;;
    *.*.*.*) kind=IP ;;
    *) kind=DNS ;;
esac
key="-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"
if [ ! -e ca.key ]; then
    openssl req -x509 $key -days 3650 -keyout ca.key -out ca.crt -subj "/CN=our-ca" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
fi
openssl req $key -keyout server.key -out server.csr -subj "/CN=$name"
printf "subjectAltName=%s:%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n" \
    "$kind" "$name" > server.cnf
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -extfile server.cnf -out server.pem
rm server.csr server.cnf
openssl req -x509 $key -days 365 -keyout local.key -out local.pem -subj "/CN=localhost" \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1"
