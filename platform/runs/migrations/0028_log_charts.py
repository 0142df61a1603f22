from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("runs", "0027_join_requests"),)

    operations = (
        migrations.AddField(model_name="logentry", name="learning_rate", field=models.FloatField(null=True)),
        migrations.AddField(model_name="logentry", name="bytes_averaged", field=models.BigIntegerField(null=True)),
    )
