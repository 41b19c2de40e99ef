"""Find calls between installed packages that the installed callee no longer answers."""
