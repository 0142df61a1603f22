"""What people are told of by browser, e-mail or webhook: what they chose, and what is on its way to them."""
