"""What keeps a store in order over months: what may go, and what two runs differ in."""
