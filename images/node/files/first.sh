# The units do nothing where their files are absent; an image is often built where systemd does not run.
if command -v systemctl >/dev/null; then
  systemctl enable nodeattest-join.service nodeattest-refresh.timer
fi
