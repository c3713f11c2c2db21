if command -v systemctl >/dev/null; then
  systemctl disable nodeattest-join.service nodeattest-refresh.timer kubelet-serving-certificate.timer || true
fi
