package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"conform/harness"
)

// knobsOf lists what an arm sets, by names such as "client acks".
func knobsOf(arm harness.Arm) map[string]string {
	out := map[string]string{}
	add := func(prefix string, set map[string]string) {
		for k, v := range set {
			out[prefix+" "+k] = v
		}
	}
	add("client", arm.Client)
	add("destination", arm.Destination)
	add("node", arm.Node)
	for name, set := range arm.WithNode {
		add(name+" node", set)
	}
	add("producer", arm.Producer.Params)
	for _, p := range arm.Processes {
		add(p.Name, p.Client)
		add(p.Name, p.Params)
	}
	return out
}

// explainSides shows what a control sets otherwise than the guarded arm that is nearest to it.
func explainSides(w io.Writer, sc harness.Scenario) {
	shown := map[string]bool{}
	for _, control := range sc.Arms {
		if control.Role != harness.Control || control.Break == nil || shown[control.Break.Knob] || control.Code != nil && control.Code.Unsafe != "" {
			continue // the same under another protocol, or the code shows it
		}
		shown[control.Break.Knob] = true
		unsafe := knobsOf(control)
		var guarded map[string]string
		var differ []string
		for _, arm := range sc.Arms {
			if arm.Role != harness.Guarded {
				continue
			}
			safe := knobsOf(arm)
			var keys []string
			for _, k := range slices.Sorted(maps.Keys(union(safe, unsafe))) {
				if safe[k] != unsafe[k] {
					keys = append(keys, k)
				}
			}
			if guarded == nil || len(keys) < len(differ) {
				guarded, differ = safe, keys
			}
		}
		if len(differ) == 0 {
			continue // it differs in how its processes run: the plan says it
		}
		width := 0
		for _, k := range differ {
			width = max(width, len(k))
		}
		fmt.Fprintf(w, "\nwhat %s sets otherwise\n", control.Name)
		fmt.Fprintf(w, "  %-*s  %-24s  %s\n", width, "", "guarded", "unsafe")
		for _, k := range differ {
			fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-*s  %-24s  %s", width, k, orUnset(guarded, k), orUnset(unsafe, k)), " "))
		}
	}
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func orUnset(set map[string]string, key string) string {
	if v, ok := set[key]; ok {
		return v
	}
	return "unset"
}
