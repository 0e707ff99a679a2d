package chain

import (
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"sync"
	"unicode"
)

//go:embed orders.go relay.go producer.go consume.go queue.go inbox.go state.go redis.go payment.go retry.go delay.go reconcile.go work.go half.go
var files embed.FS

// The marks of the line that makes the difference.
const (
	MarkSafe   = "// safe:"
	MarkUnsafe = "// unsafe:"
)

// declaration is the text of a function, or of one of the queries and steps that functions use.
type declaration struct {
	text  string
	file  string
	order int
}

// declarations are found by name: "Relay", "work.publish", "byStatus".
var declarations = sync.OnceValue(func() map[string]declaration {
	found := map[string]declaration{}
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the files are part of the binary
	}
	for _, entry := range entries {
		text, err := files.ReadFile(entry.Name())
		if err != nil {
			panic(err)
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, entry.Name(), text, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		add := func(name string, from, to token.Pos) {
			found[name] = declaration{string(text[set.Position(from).Offset:set.Position(to).Offset]), entry.Name(), len(found)}
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				add(nameOf(d), d.Pos(), d.End())
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok {
						add(v.Names[0].Name, v.Pos(), v.End())
					}
				}
			}
		}
	}
	return found
})

func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	return fmt.Sprint(receiver) + "." + f.Name.Name
}

// Source returns the text of a function of this package by its name, without its comment, or "" if there is none.
func Source(name string) string { return declarations()[name].text }

// Find returns the pair of that name.
func Find(name string) (Pair, bool) {
	i := slices.IndexFunc(Pairs(), func(p Pair) bool { return p.Name == name })
	if i < 0 {
		return Pair{}, false
	}
	return Pairs()[i], true
}

// PairsOf returns the pairs of a scenario: of the name "outbox/late-commit-gap", or below it.
func PairsOf(scenario string) []Pair {
	return slices.DeleteFunc(Pairs(), func(p Pair) bool { return p.Name != scenario && !strings.HasPrefix(p.Name, scenario+"/") })
}

// GuardedSource returns the text of the guarded function.
func (p Pair) GuardedSource() string { return Source(p.Guarded) }

// UnsafeSource returns the text of the unsafe twin.
func (p Pair) UnsafeSource() string { return Source(p.Unsafe) }

// Lines returns the numbers, from 0, of the line of GuardedSource and the line of UnsafeSource that make the difference:
// without them the two are equal, but for the function's name. An error says that it is not so.
func (p Pair) Lines() (guarded, unsafe int, err error) {
	safe, broken := linesOf(p.GuardedSource()), linesOf(p.UnsafeSource())
	unsafe = -1
	for i, line := range broken {
		if !strings.Contains(line, MarkUnsafe) {
			continue
		}
		if unsafe >= 0 {
			return 0, 0, fmt.Errorf("%s: more than one line is marked %q", p.Unsafe, MarkUnsafe)
		}
		unsafe = i
	}
	if unsafe < 0 {
		return 0, 0, fmt.Errorf("%s: no line is marked %q", p.Unsafe, MarkUnsafe)
	}
	rest := slices.Delete(slices.Clone(broken), unsafe, unsafe+1)
	for i, line := range safe {
		if strings.Contains(line, MarkSafe) && slices.Equal(slices.Delete(slices.Clone(safe), i, i+1), rest) {
			return i, unsafe, nil
		}
	}
	return 0, 0, fmt.Errorf("%s and %s differ in more than a line marked %q and one marked %q", p.Guarded, p.Unsafe, MarkSafe, MarkUnsafe)
}

// linesOf returns the lines of a function with its name and what gofmt does to white space taken out.
func linesOf(source string) []string {
	lines := strings.Split(source, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	if _, rest, ok := strings.Cut(lines[0], "("); ok {
		lines[0] = rest
	}
	return lines
}

// Helpers returns the texts of what the two marked lines use: methods, steps, queries. Printed below the pair they answer
// "and what does that do?".
func (p Pair) Helpers() ([]string, error) {
	guarded, unsafe, err := p.Lines()
	if err != nil {
		return nil, err
	}
	var used []declaration
	for _, line := range []string{linesOf(p.GuardedSource())[guarded], linesOf(p.UnsafeSource())[unsafe]} {
		code, _, _ := strings.Cut(line, "//")
		for _, word := range strings.FieldsFunc(code, func(r rune) bool { return !unicode.IsLetter(r) }) {
			for _, name := range []string{word, "work." + word, "batch." + word, "Service." + word, "scanning." + word, "question." + word, "comparison." + word} {
				if d, ok := declarations()[name]; ok && !slices.Contains(used, d) {
					used = append(used, d)
				}
			}
		}
	}
	slices.SortFunc(used, func(a, b declaration) int { return a.order - b.order })
	texts := make([]string, len(used))
	for i, d := range used {
		texts[i] = d.text
	}
	return texts, nil
}
