import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    """Requests that have no outcome yet are lost. The coordinator asks again if doubts remain."""

    after = True
    dependencies = (("runs", "0010_recheck"),)
    operations = (
        migrations.DeleteModel("Recheck"),
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
        ),
    )
