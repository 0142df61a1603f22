"""The operators' pages under /admin/: Django's, behind this site's login. What they show is in each room's admin.py."""
