# Keys and certificates stay: kubelet may be running, and the package may come back.
if command -v systemctl >/dev/null; then
  systemctl disable nodeattest-join.service nodeattest-refresh.timer kubelet-serving-certificate.service || true
  [ ! -d /run/systemd/system ] || systemctl stop nodeattest-refresh.timer kubelet-serving-certificate.service
fi
rm -rf /opt/nodeattest/current /opt/nodeattest/*-*
