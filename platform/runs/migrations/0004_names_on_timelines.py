from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0003_gathering'),
    ]

    operations = [
        migrations.AddField(
            model_name='activityline',
            name='names',
            field=models.TextField(blank=True, default=''),
            preserve_default=False,
        ),
    ]
