# Keys and certificates stay: kubelet may be running, and the package may come back.
[ ! -d /run/systemd/system ] || systemctl stop nodeattest-refresh.timer kubelet-serving-certificate.timer
rm -rf /opt/nodeattest/current /opt/nodeattest/*-*
