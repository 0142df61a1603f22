"""Roles in runs, who did what, alerts for few machines, and by whose token a model is published."""

from typing import Any

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

BY_ORGANIZERS = (
    *("created", "edited", "mixed", "paused", "resumed", "extended", "ending", "taken back", "announced", "release"),
    "member",
)


def name_organizers(apps: Any, _: Any) -> None:
    """Lines that begin with the organizer's name are what they did: nobody else could."""
    run_model, lines = apps.get_model("runs", "Run"), apps.get_model("runs", "ActivityLine").objects
    for run in run_model.objects.select_related("organizer").iterator():
        name = run.organizer.username
        own = lines.filter(run=run, kind__in=BY_ORGANIZERS, text__startswith=f"{name} ")
        own.exclude(text=f"{name} accepted an invitation.").update(by=run.organizer, by_role="organizer")


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("runs", "0023_announcement"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunRole",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[("co-organizer", "co-organizer"), ("moderator", "moderator")], max_length=12
                    ),
                ),
                ("invited_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("accepted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "invited_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "person",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="run_roles",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="roles", to="runs.run"
                    ),
                ),
            ],
            options={"ordering": ("accepted_at", "id")},
        ),
        migrations.AddConstraint(
            model_name="runrole",
            constraint=models.UniqueConstraint(fields=("run", "person"), name="one_role_a_person"),
        ),
        migrations.AddConstraint(
            model_name="runrole",
            constraint=models.CheckConstraint(
                condition=models.Q(("role__in", ["co-organizer", "moderator"])), name="role_can_be_given"
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="least_machines",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="publication",
            name="asked_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="activityline",
            name="by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="activityline",
            name="by_role",
            field=models.CharField(
                blank=True,
                choices=[
                    ("organizer", "organizer"),
                    ("co-organizer", "co-organizer"),
                    ("moderator", "moderator"),
                    ("operator", "operator"),
                ],
                max_length=12,
            ),
        ),
        migrations.AddField(
            model_name="activityline",
            name="on",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="activityline",
            name="is_internal",
            field=models.BooleanField(default=False),
        ),
        migrations.AddIndex(
            model_name="activityline",
            index=models.Index(
                condition=models.Q(("by__isnull", False)), fields=["run", "-id"], name="trail_by_run"
            ),
        ),
        migrations.RunPython(name_organizers, migrations.RunPython.noop),  # last: PostgreSQL alters nothing after it
    ]
