import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("runs", "0009_checked"),)
    operations = (
        migrations.CreateModel(
            "Recheck",
            [
                (
                    "run",
                    models.OneToOneField(
                        "runs.Run",
                        django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="recheck",
                        serialize=False,
                    ),
                ),
                ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("evidence", models.BinaryField(default=b"")),
                ("outcome", models.JSONField(null=True)),
                ("fault", models.TextField(blank=True)),
            ],
        ),
    )
