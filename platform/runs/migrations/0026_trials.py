import uuid

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("runs", "0025_release_by_default"),)

    operations = (
        migrations.AddField(
            model_name="run",
            name="can_be_tried",
            field=models.BooleanField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="Trial",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("asker", models.CharField(max_length=64)),
                ("slot", models.PositiveSmallIntegerField(null=True, unique=True)),
                ("prompt", models.TextField()),
                ("text", models.TextField(blank=True)),
                ("is_whole", models.BooleanField(default=True)),
                ("fault", models.TextField(blank=True)),
                ("asked_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="trials", to="runs.run"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("slot__isnull", False)), fields=("asker",), name="one_trial_at_a_time"
                    )
                ],
            },
        ),
    )
