package process

import (
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// common are the settings of every process.
type common struct {
	settings  string // path of the settings file
	checkOnly bool   // check everything, and start nothing
	admin     string // where the admin server listens
	token     string // path of the file with its token
	pprof     bool   // it serves profiles
	logLevel  string
	logFormat string
	traces    tracing

	levels *logLevels // made of logLevel
}

// DefaultAdmin is where the admin server of a process listens.
const DefaultAdmin = "127.0.0.1:15014"

func defaultCommon() *common {
	return &common{admin: DefaultAdmin, logLevel: "info", logFormat: "auto"}
}

func (c *common) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.admin, "admin", c.admin, "`address` of the admin server: health, metrics, debug pages. "+
		"Port 0 takes a free one and logs it. Change it for probes and scrapes from other machines (0.0.0.0:15014), or where the port is taken")
	fs.StringVar(&c.token, "admin-token-file", "", "`file` with a token that opens the debug pages, to who sends it as Authorization: Bearer TOKEN; read for each request. "+
		"Give it to look at them from other machines; this one needs none")
	fs.BoolVar(&c.pprof, "pprof", false, "add profiles to the debug pages, under /debug/pprof/. Set it to find out where time and memory go")
	fs.StringVar(&c.logLevel, "log-level", c.logLevel, "least `level` that is logged: debug, info, warn or error; "+
		"for one component COMPONENT=LEVEL, several separated by commas (info,frontend=debug). Components: "+strings.Join(components, ", ")+
		". Change it to see more of one part; while the process runs, by PUT /debug/log?level=")
	fs.StringVar(&c.logFormat, "log-format", c.logFormat, "`form` of the log: text, json, or auto, which is text on a terminal and json elsewhere. "+
		"Change it where whoever collects logs wants the other")
	c.traces.flags(fs)
	fs.StringVar(&c.settings, settingsFlag, "", "settings `file`: YAML, names of flags to values. A flag overrides it, as does its variable: --log-level, MESHLOG_LOG_LEVEL")
	fs.BoolVar(&c.checkOnly, checkFlag, false, "check all settings and the files that they name, start nothing, and end with 0 or, after saying all that is wrong, with 2")
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
