"""What people and programs are shown: lines, a page in the terminal, JSON, figures. Decides nothing."""
