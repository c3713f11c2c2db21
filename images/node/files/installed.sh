# Makes the unpacked version the current one. A process keeps the files of the version with which it began: they are
# links of their own, which no package manager replaces, and the version before stays until the next one comes.
home=/opt/nodeattest
version=@NAME@
if [ -d "$home/$version" ]; then
  # Mends what was changed there, file by file: a call that runs meanwhile finds every file, with this version's content.
  cp -alfT "$home/package" "$home/$version" 2>/dev/null || cp -aT --remove-destination "$home/package" "$home/$version"
  (cd "$home/$version" && find . ! -type d -exec sh -c 'for file; do [ -e "../package/$file" ] || rm "$file"; done' sh {} +)
else
  rm -rf "$home/.new"
  cp -al "$home/package" "$home/.new" 2>/dev/null || { rm -rf "$home/.new" && cp -a "$home/package" "$home/.new"; }
  mv -T "$home/.new" "$home/$version"
fi
before=$(readlink "$home/current" || true)
ln -sfn "$version" "$home/.current"
mv -T "$home/.current" "$home/current"
# The same version again: the one before it is not known any more, and stays.
[ "$before" = "$version" ] || for old in "$home"/*-*; do
  case ${old##*/} in "$version" | "$before") ;; *) rm -rf "$old" ;; esac
done
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemd-tmpfiles --create nodeattest.conf || true
fi
