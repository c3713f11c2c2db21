# Makes the unpacked version the current one. A process keeps the files of the version with which it began: they are
# links of their own, which no package manager replaces, and the version before stays until the next one comes.
home=/opt/nodeattest
version=@NAME@
if [ ! -d "$home/$version" ]; then
  rm -rf "$home/.new"
  cp -al "$home/package" "$home/.new" 2>/dev/null || { rm -rf "$home/.new" && cp -a "$home/package" "$home/.new"; }
  mv -T "$home/.new" "$home/$version"
fi
before=$(readlink "$home/current" || true)
ln -sfn "$version" "$home/.current"
mv -T "$home/.current" "$home/current"
for old in "$home"/*-*; do
  case ${old##*/} in "$version" | "$before") ;; *) rm -rf "$old" ;; esac
done
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemd-tmpfiles --create nodeattest.conf || true
  systemctl try-restart kubelet-serving-certificate.service
fi
