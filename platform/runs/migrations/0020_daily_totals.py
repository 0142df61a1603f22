"""What people gave by day. Of the days before, those are filled in that a board of the week still counts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Sum
from django.db.models.functions import TruncDate

OLDEST_DAYS = 70
FIRST = datetime(1970, 1, 1, tzinfo=UTC).date()


def fill(apps: Any, _: Any) -> None:
    """Sum up the ledger of the last days."""
    since = datetime.now(UTC) - timedelta(days=OLDEST_DAYS)
    rows = apps.get_model("runs", "LedgerEntry").objects.filter(entry__at__gte=since).order_by()
    by_day = rows.annotate(date=TruncDate("entry__at", tzinfo=UTC)).values_list("run", "person", "date")
    total = apps.get_model("runs", "DailyTotal")
    total.objects.bulk_create(
        total(run_id=run, person_id=person, day=(date - FIRST).days, samples=samples, tokens=tokens)
        for run, person, date, samples, tokens in by_day.annotate(given=Sum("samples"), read=Sum("tokens"))
    )


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("runs", "0019_release_of_a_snapshot"),
    ]

    operations = [
        migrations.CreateModel(
            name="DailyTotal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.IntegerField()),
                ("samples", models.BigIntegerField(default=0)),
                ("tokens", models.BigIntegerField(default=0)),
                (
                    "person",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="daily", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="daily", to="runs.run"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["day", "run"], name="daily_by_day")],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "person", "day"), name="daily_person_once_a_day")
                ],
            },
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
