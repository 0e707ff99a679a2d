package main

import (
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"conform/harness/worker"
)

// workerCommand runs one client process. It is started by the engine, never by a person.
func (a *app) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker ROLE",
		Hidden: true,
		Args:   args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			// A Ctrl-C reaches the whole process group. The engine alone decides when its workers
			// end; they see its end by that of stdin.
			signal.Ignore(os.Interrupt)
			return worker.Main(c.Context(), args, a.stdin, a.stdout, a.stderr)
		},
	}
}
