package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"conform/harness/ledger"
	"conform/harness/ledger/mutate"
)

func main() {
	for _, root := range os.Args[1:] {
		filepath.Walk(root, func(p string, i os.FileInfo, err error) error {
			if err != nil || filepath.Base(p) != "header.json" {
				return nil
			}
			b, _ := os.ReadFile(p)
			h, err := ledger.DecodeHeader(b)
			if err != nil {
				return nil
			}
			n := map[string]int{}
			fs, _ := filepath.Glob(filepath.Dir(p) + "/snapshot*.journal")
			for _, f := range fs {
				b, _ := os.ReadFile(f)
				j, err := mutate.Decode(bytes.NewReader(b), f)
				if err != nil {
					continue
				}
				for _, e := range j.Events {
					if e.Kind == ledger.Effect && strings.HasPrefix(e.Text, "dead_letter") {
						s, q := ledger.SplitEventID(e.EventID)
						n[fmt.Sprintf("%d/%d", s, q)]++
					}
				}
			}
			if len(n) > 0 {
				if len(n) > 6 {
					n = map[string]int{"many": len(n)}
				}
				fmt.Println(h.Suite, h.Scenario, h.Arm, h.Role, n)
			}
			return nil
		})
	}
}
