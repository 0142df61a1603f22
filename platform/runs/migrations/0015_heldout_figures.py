"""What is measured of a snapshot beside its held-out loss."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0014_preparation")]

    operations = [
        migrations.AddField(
            model_name="snapshot", name="heldout_figures", field=models.JSONField(blank=True, default=dict)
        ),
    ]
