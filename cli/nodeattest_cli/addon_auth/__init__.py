"""``nodeattest addon-auth``: who an add-on's caller is, without handing the add-on anybody's credentials."""
