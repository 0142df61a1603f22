"""`manage.py doctor`: check the site, as the operators' page does."""

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from config.environment import public_settings
from server.lock import announced_url
from web import health

SIGNS = {health.State.OK: "✓", health.State.ABSENT: "○"}


class Command(BaseCommand):
    """Prints a line for each check. Exits with status 1 if any check needs attention, otherwise with 0."""

    help = "Check the site: address, certificate, mail, relay, backup, disk and the rest of the operators' page."
    requires_system_checks = ()

    def handle(self, **_: Any) -> None:
        """Run all checks. If the site is running, use the public address that it has announced."""
        for name, value in public_settings(announced_url() or settings.PUBLIC_URL).items():
            setattr(settings, name, value)
        found = health.look(health.CHECKS, patience_s=health.LIMIT_S)
        for each in found:
            finding = each.finding
            todo = f" {finding.do} {finding.code}".rstrip() if finding.state != health.State.OK else ""
            self.stdout.write(f"{SIGNS.get(finding.state, '!')} {each.title:<18} {finding.said}{todo}")
        if any(each.finding.needs_someone for each in found):
            sys.exit(1)
