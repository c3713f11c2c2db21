"""``nodeattest machines``: list attested machines, reset, readmit and adopt one."""
