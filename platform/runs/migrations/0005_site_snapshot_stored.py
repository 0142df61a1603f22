from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_heldout_loss")]

    operations = [
        migrations.AddField("snapshot", "is_stored", models.BooleanField(default=True)),
    ]
