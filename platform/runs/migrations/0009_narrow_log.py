from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_move_records")]

    operations = [
        migrations.RemoveField("logentry", "record"),
        migrations.RemoveField("logentry", "signature"),
    ]
