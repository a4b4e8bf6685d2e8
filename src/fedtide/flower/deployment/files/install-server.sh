#!/bin/sh
# Installs the server of a federation from this folder, and starts it: run it as root, and again
# after a renewal of the certificates. A run.toml that is installed stays.
set -eu
cd "$(dirname "$0")"
id -u flower > /dev/null 2>&1 ||
    useradd --system --create-home --home-dir /var/lib/flower flower
install -d -o flower -m 700 /var/lib/fedtide
install -d /etc/flower
install -m 600 server.pem server.key /etc/flower
install -o flower -m 600 local.pem local.key config.toml /var/lib/flower
[ -e /var/lib/flower/run.toml ] || install -o flower -m 600 run.toml /var/lib/flower
rm -rf /var/lib/flower/app
cp -R app /var/lib/flower
chown -R flower /var/lib/flower/app
install -m 644 fleet.conf /etc/nginx/conf.d
install -m 644 superlink.service federation.service /etc/systemd/system
systemctl enable superlink
systemctl restart superlink nginx
