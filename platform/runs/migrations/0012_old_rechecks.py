from django.db import migrations


class Migration(migrations.Migration):
    after = True
    dependencies = (("runs", "0011_disputes"),)
    operations = (migrations.RunSQL("DROP TABLE runs_recheck", migrations.RunSQL.noop),)
