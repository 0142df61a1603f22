"""Forms about one's own account."""

from typing import Any

from django import forms

NEW = forms.PasswordInput(attrs={"autocomplete": "new-password"})


class NewPasswordForm(forms.Form):
    """A password for somebody who has shown otherwise who they are."""

    password = forms.CharField(label="New password", strip=False, help_text="At least 10 characters.", widget=NEW)


class NameForm(forms.Form):
    """A public name."""

    username = forms.CharField(
        label="Name",
        max_length=30,
        help_text="Others see it beside your work. 2 to 30 letters, digits, dots, dashes or underscores.",
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )


class PasswordForm(NewPasswordForm):
    """Another password for oneself."""

    current = forms.CharField(
        label="Present password",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    field_order = ("current", "password")

    def __init__(self, *args: Any, has_password: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not has_password:  # whoever came by another site has none to show
            self.fields["current"] = forms.CharField(required=False, widget=forms.HiddenInput)
