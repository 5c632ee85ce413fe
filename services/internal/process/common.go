package process

import (
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// common holds the settings of every process, which the flags' texts describe.
type common struct {
	settings  string
	checkOnly bool
	admin     string
	token     string
	pprof     bool
	logLevel  string
	logFormat string
	traces    tracing

	levels logLevels // parsed from logLevel
}

func defaultCommon() *common {
	return &common{admin: "127.0.0.1:15014", logLevel: "info", logFormat: "auto"}
}

func (c *common) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.admin, "admin", c.admin, "`address` of the admin server: health, metrics, debug pages. "+
		"Port 0 takes a free port and logs it. Change it to allow probes and scrapes from other machines (0.0.0.0:15014), or if the port is taken")
	fs.StringVar(&c.token, "admin-token-file", "", "`file` with the token for the debug pages, which other machines send as Authorization: Bearer TOKEN; read for each request. "+
		"Set it to open the debug pages to other machines; this machine needs no token")
	fs.BoolVar(&c.pprof, "pprof", false, "add profiles to the debug pages, under /debug/pprof/. Set it to find out where time and memory go")
	fs.StringVar(&c.logLevel, "log-level", c.logLevel, "minimum `level` of log lines: debug, info, warn or error; "+
		"for one component COMPONENT=LEVEL, several separated by commas (info,frontend=debug). Components: "+strings.Join(components, ", ")+
		". Change it to see more of one component. In a running process, use PUT /debug/log?level=")
	fs.StringVar(&c.logFormat, "log-format", c.logFormat, "`format` of the log: text, json, or auto, which is text on a terminal and json elsewhere. "+
		"Change it if your log collector needs the other one")
	c.traces.flags(fs)
	fs.StringVar(&c.settings, settingsFlag, "", "settings `file`: YAML that maps names of flags to values. Flags and variables override it: --log-level, MESHLOG_LOG_LEVEL")
	fs.BoolVar(&c.checkOnly, checkFlag, false, "check all settings and the files that they name without starting the process; exit with 0, or print all errors and exit with 2")
}

func (c *common) check() error {
	var errs []error
	if _, _, err := net.SplitHostPort(c.admin); err != nil {
		errs = append(errs, Invalid("admin", "want HOST:PORT"))
	}
	if c.token != "" {
		if _, err := readToken(c.token); err != nil {
			errs = append(errs, Invalid("admin-token-file", "%w", err))
		}
	}
	var err error
	if c.levels, err = newLogLevels(c.logLevel); err != nil {
		errs = append(errs, Invalid("log-level", "%w", err))
	}
	if !slices.Contains(logForms, c.logFormat) {
		errs = append(errs, Invalid("log-format", "want text, json or auto"))
	}
	return errors.Join(errors.Join(errs...), c.traces.check())
}
