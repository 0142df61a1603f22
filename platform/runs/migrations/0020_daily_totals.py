"""What people gave by day; days of before have no rows."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


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
    ]
