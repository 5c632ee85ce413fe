package cli

import (
	"testing"

	"meshlog.dev/services/internal/process/processtest"
)

func TestSettingsFile(t *testing.T) {
	processtest.SettingsFile(t, upCommand, "../../../deploy/config/up.yaml", *update)
}
