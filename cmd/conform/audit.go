package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"conform/harness/ledger"
	"conform/reports"
)

func (a *app) auditCommand() *cobra.Command {
	var message, arm, format string
	var allowSkip []string
	c := &cobra.Command{
		Use:   "audit DIR",
		Short: "judge a recorded run again, from its ledgers alone",
		Long: `audit judges the ledgers of a run folder by the promise recorded in them, and says where this binary's own
promise or checks differ. A damaged ledger is named by file and offset, and what is whole is judged.

` + exitHelp,
		Example: `  conform audit conform-runs/20260504-093000-7f3a90c1
  conform audit conform-runs/20260504-093000-7f3a90c1 --message 2/9311`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := oneOf("format", format, formatNames()...); err != nil {
				return err
			}
			if err := isFolder(args[0]); err != nil {
				return err
			}
			if message != "" {
				return a.tell(args[0], message, arm)
			}
			result, err := a.backend.audit(args[0], a.suites)
			if err != nil {
				return err
			}
			options := reports.Options{CI: a.ci, AllowSkip: allowSkip}
			better := false
			for _, change := range result.Changed {
				options.Notes = append(options.Notes, change.String())
				better = better || change.Better()
			}
			doc := reports.New(result, options)
			if err := a.print(doc, format); err != nil {
				return err
			}
			if err := verdictOf(doc); err != nil {
				return err
			}
			if better { // judged more kindly than by the binary that saw it
				return &verdictError{exitInconclusive}
			}
			return nil
		},
	}
	c.Flags().StringVar(&message, "message", "", "tell the whole story of one message, named stream/seq as reports name it")
	c.Flags().StringVar(&arm, "arm", "", "with --message: only of arms of that name")
	c.Flags().StringVar(&format, "format", "text", "what is printed: "+strings.Join(formatNames(), ", "))
	c.Flags().StringArrayVar(&allowSkip, "allow-skip", nil, "with CI=true: scenario that may be not applicable, by name or glob; repeatable")
	return c
}

// tell prints what happened to one message, in each arm that has it.
func (a *app) tell(dir, message, arm string) error {
	id, err := parseMessage(message)
	if err != nil {
		return err
	}
	stories, err := a.story(dir, id, arm)
	if err != nil {
		return err
	}
	if len(stories) == 0 {
		return usagef("no ledger in %s knows message %s", dir, id)
	}
	for i, s := range stories {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := reports.WriteStory(a.stdout, s); err != nil {
			return err
		}
	}
	return nil
}

// parseMessage reads "stream/seq".
func parseMessage(text string) (ledger.MessageID, error) {
	stream, seq, ok := strings.Cut(text, "/")
	st, err1 := strconv.ParseUint(stream, 10, 32)
	sq, err2 := strconv.ParseUint(seq, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return ledger.MessageID{}, usagef("--message %q: want STREAM/SEQ, as reports name messages, e.g. 2/9311", text)
	}
	return ledger.MessageID{Stream: uint32(st), Seq: sq}, nil
}

// isFolder refuses what is no run folder before anything is read.
func isFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return usagef("%s: there is no such run folder", dir)
	case err != nil:
		return fmt.Errorf("look at run folder: %w", err)
	case !info.IsDir():
		return usagef("%s: want the folder of a run", dir)
	}
	return nil
}
