package main

import (
	"flag"
	"testing"

	"meshlog.dev/services/internal/process/processtest"
)

var update = flag.Bool("update", false, "rewrite the settings file")

func TestSettingsFile(t *testing.T) {
	processtest.SettingsFile(t, command, "../../../deploy/config/kube-events.yaml", *update)
}
