"""Where observations come from: kernel logs, node folders, job output, NVML (`ports.source.Source`)."""
