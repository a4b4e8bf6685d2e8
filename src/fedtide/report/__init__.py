"""What people look at: tables and figures of finished runs."""
