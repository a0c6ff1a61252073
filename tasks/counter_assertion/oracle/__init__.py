"""An independent reference of one optimizer step. Nothing here imports the trainer, the schedule or the loss."""
