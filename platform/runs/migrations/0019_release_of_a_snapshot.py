"""A release may be of another snapshot than the newest."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0018_hub_sources")]

    operations = [
        migrations.AddField("release", "wanted_index", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("release", "index", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("release", "step", models.BigIntegerField(blank=True, null=True)),
    ]
