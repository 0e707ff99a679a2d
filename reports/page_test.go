package reports

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	shots   = flag.String("shots", "", "folder for pictures of the page, to look at")
	reportF = flag.String("report", "", "a report.html to take pictures of, instead of the golden ones")
)

// browser starts a headless Chromium, or skips: in CI that is an error.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		const missing = "no Chromium on PATH: `conform prepare --dev` installs it"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	actx, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	ctx, end := chromedp.NewContext(actx)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(func() { cancel(); end(); stop() })
	return ctx
}

// trouble collects what a page must not do.
type trouble struct {
	mu  sync.Mutex
	all []string
}

func (tr *trouble) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.all = append(tr.all, fmt.Sprintf(format, args...))
}

func (tr *trouble) watch(t *testing.T, ctx context.Context) {
	err := chromedp.Listen(ctx, func(ev any) {
		switch e := ev.(type) {
		case *cdpruntime.EventExceptionThrown:
			tr.add("exception: %s", e.ExceptionDetails.Text)
		case *cdpruntime.EventConsoleAPICalled:
			tr.add("console %s", e.Type)
		case *log.EventEntryAdded:
			tr.add("log %s: %s", e.Entry.Level, e.Entry.Text)
		case *cdppage.EventJavascriptDialogOpening:
			tr.add("dialog: %s", e.Message)
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; !strings.HasPrefix(u, "file:") && !strings.HasPrefix(u, "data:") {
				tr.add("request for %s", u)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// look opens a page on a screen of that size and colour scheme.
func look(t *testing.T, ctx context.Context, file string, width, height int64, scheme string) {
	t.Helper()
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate("file://"+file), chromedp.WaitVisible(chromedp.ID("verdict")))
	if err != nil {
		t.Fatal(err)
	}
}

func eval[T any](t *testing.T, ctx context.Context, js string) T {
	t.Helper()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		t.Fatalf("%s: %v", js, err)
	}
	return out
}

// contrast lists texts whose contrast to what is behind them is below 4.5.
const contrast = `(() => {
  const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { c: m.slice(0, 3), a: m.length > 3 ? m[3] : 1 }; };
  const lum = (c) => { const f = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const ground = (e) => { for (; e; e = e.parentElement) { const b = rgb(getComputedStyle(e).backgroundColor); if (b.a > 0.99) return b.c; } return rgb(getComputedStyle(document.body).backgroundColor).c; };
  const bad = new Set();
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    if (e.closest("svg") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
    const a = lum(rgb(getComputedStyle(e).color).c), b = lum(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(e.tagName + "." + e.className + " " + ratio.toFixed(2));
  }
  return [...bad];
})()`

// headings lists jumps in the outline.
const headings = `(() => {
  let last = 0; const bad = [];
  for (const h of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) { const l = +h.tagName[1]; if (l > last + 1) bad.push(h.tagName + " " + h.textContent.slice(0, 40)); last = l; }
  return bad;
})()`

func TestPage(t *testing.T) {
	ctx := browser(t)
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, render(t, "html", New(mixed(), Options{Notes: []string{hostile}})), 0o600); err != nil {
		t.Fatal(err)
	}
	var tr trouble
	tr.watch(t, ctx)
	open := func(t *testing.T, width, height int64, scheme string) {
		t.Helper()
		look(t, ctx, file, width, height, scheme)
	}
	number := func(t *testing.T, js string, want int) {
		t.Helper()
		if got := eval[int](t, ctx, js); got != want {
			t.Errorf("%s = %d, want %d", js, got, want)
		}
	}
	open(t, 1180, 900, "light")

	t.Run("elements", func(t *testing.T) {
		number(t, `document.querySelectorAll("article.scenario").length`, 6)
		number(t, `document.querySelectorAll("article.scenario:first-of-type .chain")[0].children.length`, len(stages))
		number(t, `document.querySelectorAll("#kafka-acks-leader-isolated .strike.broken").length`, 1)
		number(t, `document.querySelectorAll("#kafka-acks-leader-isolated .chart .mark").length`, 4)
		number(t, `document.querySelectorAll("#kafka-acks-response-lost details.repeat[open]").length`, 1)
		number(t, `document.querySelectorAll("img, [src], link[rel=stylesheet]").length`, 0)
		verdict := eval[string](t, ctx, `document.querySelector("h1").textContent + document.querySelector(".headline").textContent`)
		for _, want := range []string{"fail", "kafka-acks/response-lost", "2 of 4"} {
			if !strings.Contains(verdict, want) {
				t.Errorf("verdict %q does not say %q", verdict, want)
			}
		}
		// Where and why one message was lost stands in one place, without unfolding anything.
		lost := eval[string](t, ctx, `document.querySelector("#kafka-acks-leader-isolated .lost").innerText`)
		for _, want := range []string{"2/9311", "lost(confirmed)/broker", "was accepted by the broker and is gone there", "lost here", "kafka-2 answered without an error", "absent from the log"} {
			if !strings.Contains(lost, want) {
				t.Errorf("the lost message's section does not say %q:\n%s", want, lost)
			}
		}
	})

	t.Run("filter", func(t *testing.T) {
		visible := `[...document.querySelectorAll("article.scenario")].filter((a) => a.offsetParent).length`
		if err := chromedp.Do(ctx, chromedp.SendKeys(chromedp.ID("find"), "two-disks")); err != nil {
			t.Fatal(err)
		}
		number(t, visible, 1)
		shown := eval[string](t, ctx, `document.getElementById("shown").textContent`)
		if shown != "1 of 6 scenarios shown" {
			t.Errorf("the filter says %q", shown)
		}
		eval[int](t, ctx, `var find = document.getElementById("find"), only = document.getElementById("only"); find.value = ""; find.dispatchEvent(new Event("input")); only.value = "not-applicable"; only.dispatchEvent(new Event("change")); 0`)
		number(t, visible, 1)
		eval[int](t, ctx, `only.value = ""; only.dispatchEvent(new Event("change")); 0`)
		number(t, visible, 6)
		if err := chromedp.Do(ctx, chromedp.Click(chromedp.ID("unfold"))); err != nil {
			t.Fatal(err)
		}
		number(t, `document.querySelectorAll("details:not([open])").length`, 0)
	})

	t.Run("readable", func(t *testing.T) {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1180, 360} {
				open(t, width, 800, scheme)
				if err := chromedp.Do(ctx, chromedp.Click(chromedp.ID("unfold"))); err != nil {
					t.Fatal(err)
				}
				bad := eval[[]string](t, ctx, contrast)
				if len(bad) > 0 {
					t.Errorf("%s, %d wide: too little contrast: %s", scheme, width, strings.Join(bad, "; "))
				}
				over := eval[int](t, ctx, `document.documentElement.scrollWidth - innerWidth`)
				if over > 0 {
					t.Errorf("%d wide: the page is %d px wider than the screen", width, over)
				}
			}
		}
		jumps := eval[[]string](t, ctx, headings)
		if len(jumps) > 0 {
			t.Errorf("headings jump: %s", strings.Join(jumps, "; "))
		}
		number(t, `[...document.querySelectorAll("table")].filter((t) => !t.querySelector("th[scope]")).length`, 0)
		ids := eval[[]string](t, ctx, `[...document.querySelectorAll("[id]")].map((e) => e.id)`)
		slices.Sort(ids)
		if n := len(ids); len(slices.Compact(ids)) != n {
			t.Error("an id stands twice")
		}
	})

	t.Run("hostile", func(t *testing.T) {
		number(t, `document.scripts.length`, 1)
		text := eval[string](t, ctx, `document.body.innerText`)
		want, _, _ := strings.Cut(hostile, "\x1b")
		if !strings.Contains(text, want) {
			t.Error("the hostile text is not shown as text")
		}
	})
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.all) > 0 {
		b, _ := json.MarshalIndent(tr.all, "", "  ")
		t.Errorf("the page did what it must not: %s", b)
	}
}

// TestShots takes pictures to look at: go test ./reports -run Shots -shots DIR [-report FILE].
func TestShots(t *testing.T) {
	if *shots == "" {
		return
	}
	ctx := browser(t)
	pages := map[string]string{}
	if *reportF != "" {
		pages["run"] = *reportF
	} else {
		for _, name := range []string{"pass", "mixed"} {
			abs, err := filepath.Abs(filepath.Join("testdata", name+"-report.html"))
			if err != nil {
				t.Fatal(err)
			}
			pages[name] = abs
		}
	}
	for name, file := range pages {
		for _, v := range []struct {
			scheme string
			width  int64
		}{{"light", 1180}, {"dark", 1180}, {"light", 380}} {
			look(t, ctx, file, v.width, 1340, v.scheme)
			top, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			whole, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			for part, b := range map[string][]byte{"top": top, "whole": whole} {
				out := filepath.Join(*shots, fmt.Sprintf("%s-%s-%d-%s.png", name, v.scheme, v.width, part))
				if err := os.WriteFile(out, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
