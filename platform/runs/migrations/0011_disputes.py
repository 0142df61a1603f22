import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

COPY = """
INSERT INTO runs_recheck_request (run_id, about, asked_at, evidence, outcome, fault, is_heeded)
SELECT run_id, '', asked_at, evidence, outcome, fault, FALSE FROM runs_recheck
"""


class Migration(migrations.Migration):
    """Give requests a table of their own, because the previous version uses the old one until it has stopped."""

    dependencies = (("runs", "0010_recheck"),)
    operations = (
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("Recheck")]),
        migrations.CreateModel(
            "Recheck",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "run",
                    models.ForeignKey(
                        "runs.Run", on_delete=django.db.models.deletion.CASCADE, related_name="rechecks"
                    ),
                ),
                ("about", models.CharField(blank=True, max_length=32)),
                ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("evidence", models.BinaryField(default=b"")),
                ("outcome", models.JSONField(null=True)),
                ("fault", models.TextField(blank=True)),
                ("is_heeded", models.BooleanField(default=False)),
            ],
            options={"db_table": "runs_recheck_request"},
        ),
        migrations.RunSQL(COPY, migrations.RunSQL.noop),
    )
