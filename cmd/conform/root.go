package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"conform/fixtures"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "conform",
		Short: "prove what a messaging promise is worth, on real brokers and under faults",
		Long: `conform runs suites of fault scenarios against real brokers in containers. In each scenario a guarded
configuration must keep its promise, and a control that differs in one knob must break it as named: a guard
that holds while its control does not break proves nothing, and is never called a pass.

` + exitHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Runnable, so that an unknown command reaches Args and gets the nearest names.
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return &fixtures.UnknownError{Kind: "command", Got: args[0], Nearest: nearest(args[0], names)}
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.PersistentFlags().BoolVar(&a.verbose, "verbose", false, "log details to stderr")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(a.runCommand(), a.listCommand(), a.explainCommand(), a.auditCommand(), a.reportCommand(),
		a.prepareCommand(), a.doctorCommand(), a.versionCommand(), a.workerCommand())
	root.InitDefaultCompletionCmd() // here, so that it is among the nearest names
	for _, c := range root.Commands() {
		if c.Name() == "completion" { // runnable, so that an unknown shell reaches Args
			c.RunE, c.Args = root.RunE, args(cobra.NoArgs)
		}
	}
	return root
}

// flagError names the nearest flags of an unknown one.
func flagError(c *cobra.Command, err error) error {
	if said, _, ok := strings.Cut(err.Error(), ": strconv."); ok {
		return usagef("%s: want a whole number in range", said)
	}
	if said, _, ok := strings.Cut(err.Error(), ": time: "); ok {
		return usagef("%s: want a length of time, e.g. 30s or 5m", said)
	}
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return &usageError{err}
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return &fixtures.UnknownError{Kind: "flag", Got: "--" + name, Nearest: nearest("--"+name, names)}
}

// args wraps cobra's checks of arguments: their errors are usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}
