#!/bin/sh
# Installs a site from this folder, checks it, and starts it: run it as root, and again after an
# upgrade of the server.
set -eu
cd "$(dirname "$0")"
id -u flower > /dev/null 2>&1 ||
    useradd --system --create-home --home-dir /var/lib/flower flower
install -d -o flower -m 700 /var/lib/fedtide /var/lib/flower/site
[ -x /opt/fedtide/bin/python ] || python3 -m venv /opt/fedtide
/opt/fedtide/bin/pip install --quiet --requirement requirements.txt
cp -R ca.crt key site.toml requirements.txt app /var/lib/flower/site
chown -R flower /var/lib/flower/site
install -m 644 supernode.service /etc/systemd/system
cd /var/lib/flower
runuser -u flower -- /opt/fedtide/bin/fedtide flower check /var/lib/flower/site
systemctl enable supernode
systemctl restart supernode
