package bisect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

type flags struct {
	good, bad, node, expect string
	call                    bool
}

// Bisect returns the command `bisect`.
func Bisect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bisect --good VERSION --bad VERSION [PROXY] (-- CMD... | --call URL --expect CLUSTER)",
		Short: "Find the change from which on the configuration of a proxy is bad",
		Long: `Find the first version, and then the first record of the log, from which on the
configuration of a proxy is bad. Half of what is left is ruled out by each test, so 1000
versions take 10 tests. Nothing is sent to the proxy.

With --call the test is a request of the proxy, simulated as ` + "`meshlog simulate`" + ` does: it
is good if each cluster that it may go to has a healthy endpoint and CLUSTER is one of
them. Write the proxy first: --call PROXY URL.

With -- CMD the test is a command. It finds the resources of the proxy in the directory
$XDS_DIR, one JSON list for each type: clusters.json, endpoints.json, listeners.json,
routes.json, filters.json, secrets.json, names.json. $XDS_ADDRESS is the address of a
frontend that serves the version to any Envoy, as ` + "`meshlog serve`" + ` does, and $XDS_VERSION is
the version. Its exit code says what it found, as for git bisect run:

  0           the version is good
  125         it cannot be tested: another one is
  1 to 127    it is bad
  above 127   the search ends

Both ends are tested first. If the good version is the later one, the command finds the
change from which on the configuration is good. What several records change as one, such
as a batch or the listing of a source, is one step.

With --node, a file with Envoy's bootstrap or its node, the proxy need not be connected,
and the mesh need not run: --data and --archive are enough. The proxies that were
connected when an archive was written can be named, too.

Exit code 1: the ends do not differ, or not as --good and --bad say.

` + command.MomentForms + `
Any position of the log is a VERSION here, published or not.`,
		Example: `  meshlog bisect --good "14:00" --bad latest --call edge-1 http://shop.example/cart \
    --expect 'outbound|80||shop.example'
  meshlog bisect --good latest~200 --bad latest edge-1 -- ./test.sh
  meshlog bisect --archive mesh.archive --node envoy.yaml --good .13 --bad .27 -- \
    sh -c 'grep -q shop.example $XDS_DIR/routes.json'`,
	}
	var f flags
	fs := cmd.Flags()
	fs.StringVar(&f.good, "good", "", "a `version` whose configuration is good (required)")
	fs.StringVar(&f.bad, "bad", "", "a `version` whose configuration is bad (required)")
	fs.StringVar(&f.node, "node", "", "`file` with Envoy's bootstrap, or its node: test the configuration of such a proxy")
	fs.BoolVar(&f.call, "call", false, "test a request of the proxy: the arguments are PROXY and URL")
	fs.StringVar(&f.expect, "expect", "", "`cluster` that the request of --call must go to, as proxy-config names it")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		dash := cmd.ArgsLenAtDash()
		var argv []string
		if dash >= 0 {
			args, argv = args[:dash], args[dash:]
		}
		id, url, err := f.arguments(args, argv)
		if err != nil {
			return err
		}
		b := &bisection{env: e, flags: f}
		if err := b.open(ctx, id); err != nil {
			return err
		}
		if b.test, err = b.testOf(url, argv); err != nil {
			return err
		}
		if err := b.run(ctx); err != nil {
			return err
		}
		e.Print(&b.view, func() { b.view.show(e.Output) })
		return nil
	})
}

// arguments checks the words of the command line.
func (f *flags) arguments(args, argv []string) (id, url string, err error) {
	switch {
	case f.good == "" || f.bad == "":
		return "", "", command.Usage("--good and --bad: give both, a version whose configuration is good and one whose is bad")
	case f.call && len(argv) > 0:
		return "", "", command.Usage("--call and -- CMD: give one of them")
	case !f.call && len(argv) == 0:
		return "", "", command.Usage("what is the test? Give -- CMD, or --call URL --expect CLUSTER")
	case f.call && f.expect == "":
		return "", "", command.Usage("--expect is missing: the cluster that the call must go to; `meshlog proxy-config PROXY clusters` lists them")
	case !f.call && f.expect != "":
		return "", "", command.Usage("--expect has no effect without --call")
	}
	if f.call {
		if len(args) == 0 {
			return "", "", command.Usage("URL is missing: --call PROXY URL")
		}
		args, url = args[:len(args)-1], args[len(args)-1]
	}
	switch {
	case len(args) > 1:
		return "", "", command.Usage("unexpected argument %q", args[1])
	case len(args) == 1:
		return args[0], url, nil
	case f.node == "":
		return "", "", command.Usage("PROXY is missing: give its id, which `meshlog proxy-status` lists, or --node FILE")
	}
	return "", url, nil
}

// bisection is one search.
type bisection struct {
	env   *command.Env
	flags flags
	past  *past.Past
	proxy *proxy.Proxy
	test  test
	ends  [2]command.Moment // in the order of the log
	view  view
}

// open finds the proxy and the ends.
func (b *bisection) open(ctx context.Context, id string) (err error) {
	if b.past, err = b.env.Past(ctx); err != nil {
		return err
	}
	q := command.ProxyQuery{ID: id, File: b.flags.node}
	if b.proxy, err = q.Find(ctx, b.env.Target, b.past); err != nil {
		return err
	}
	b.view.Proxy = b.proxy.ID
	for i, arg := range []string{b.flags.good, b.flags.bad} {
		if b.ends[i], err = command.FindMoment(ctx, b.past, arg); err != nil {
			return err
		}
	}
	b.view.Good, b.view.Bad = b.ends[0].Version, b.ends[1].Version
	if b.view.Good == b.view.Bad {
		return command.Usage("--good and --bad are the same version, %s", b.view.Good)
	}
	b.view.Found = bad
	if b.view.Bad.Less(b.view.Good) {
		b.view.Found = good
		b.ends[0], b.ends[1] = b.ends[1], b.ends[0]
	}
	return nil
}

func (b *bisection) testOf(url string, argv []string) (test, error) {
	if len(argv) > 0 {
		return &program{proxy: b.proxy, argv: argv, stdin: b.env.Stdin, output: b.env.Stderr}, nil
	}
	c := simulate.Call{Headers: map[string][]string{}}
	err := command.ReadURL(&c, "GET", url)
	return &call{proxy: b.proxy, call: c, cluster: b.flags.expect}, err
}

// versions returns the ends and the published versions between them, oldest first.
func (b *bisection) versions(ctx context.Context) (all []ident.Position, err error) {
	from, to := b.ends[0].Version, b.ends[1].Version
	for m, err := range b.past.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		v := store.VersionOf(m.GetVersion())
		if !from.Less(v) {
			break
		}
		if v.Less(to) {
			all = append(all, v)
		}
	}
	slices.Reverse(all)
	return slices.Concat([]ident.Position{from}, all, []ident.Position{to}), nil
}

// at returns the point of a version.
func (b *bisection) at(v ident.Position) point {
	return point{v, func(ctx context.Context) (store.Stored, error) { return past.At(ctx, b.past, v) }}
}

// judge tests a point and says what came out. A content that is not kept is skipped.
func (b *bisection) judge(ctx context.Context, p point, what string) (verdict, string, error) {
	v, says, err := b.test.judge(ctx, p)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, past.ErrTooOld) {
		v, says, err = skip, "its content is no longer kept", nil
	}
	if err != nil {
		return "", "", err
	}
	fmt.Fprintf(b.env.Stderr, "%s %s is %s: %s\n", what, p.version, v, says)
	b.view.Tests = append(b.view.Tests, testView{p.version, v, says})
	return v, says, nil
}

// run searches.
func (b *bisection) run(ctx context.Context) error {
	versions, err := b.versions(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.env.Stderr, "%s between %s and %s: about %s\n", command.Plural(len(versions)-2, "version", "versions"), versions[0], versions[len(versions)-1],
		command.Plural(steps(len(versions))+2, "test", "tests"))
	first, err := b.judgeEnds(ctx)
	if err != nil {
		return err
	}
	before, after, err := search(ctx, len(versions), first, func(ctx context.Context, i int) (verdict, error) {
		v, _, err := b.judge(ctx, b.at(versions[i]), "version")
		return v, err
	})
	if err != nil {
		return err
	}
	b.view.Before, b.view.Version = versions[before], versions[after]
	b.view.Skipped = versions[before+1 : after]
	if err := b.records(ctx, first); err != nil {
		return err
	}
	return b.effect(ctx)
}

// judgeEnds tests the ends, and returns the verdict of the earlier one.
func (b *bisection) judgeEnds(ctx context.Context) (verdict, error) {
	var is [2]verdict
	var says [2]string
	for i, m := range b.ends {
		var err error
		if is[i], says[i], err = b.judge(ctx, b.at(m.Version), "version"); err != nil {
			return "", err
		}
		if is[i] == skip {
			return "", fmt.Errorf("version %s cannot be tested (%s): name another one", m.Version, says[i])
		}
	}
	switch {
	case is[0] == is[1]:
		return "", fmt.Errorf("%s and %s are both %s (%s): no change between them makes the difference", b.ends[0].Version, b.ends[1].Version, is[0], says[1])
	case is[1] != b.view.Found:
		return "", fmt.Errorf("%s is bad and %s is good: exchange --good and --bad", b.view.Good, b.view.Bad)
	}
	return is[0], nil
}
