package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	var b bench
	flag.StringVar(&b.binary, "binary", "bin/csi-provisioner", "the program to measure")
	flag.StringVar(&b.against, "against", "", "another program, measured in turn with the first, for ratios; empty for none")
	flag.IntVar(&b.rounds, "rounds", 3, "how often both are measured, with -against")
	flag.StringVar(&b.out, "out", "bin/bench", "folder for load.json and load.svg")
	flag.StringVar(&b.args, "args", "", "further arguments for the program, separated by blanks")
	flag.Var(&b.claims, "claims", "sizes of the sweep over claims, in a cluster with nothing else; empty for no such sweep")
	flag.Var(&b.nodes, "nodes", "sizes of the sweep over nodes with a segment each")
	flag.Var(&b.foreign, "foreign", "sizes of the sweep over claims of another driver")
	flag.IntVar(&b.each, "n", 200, "claims in the sweeps over nodes and foreign claims")
	b.claims, b.nodes, b.foreign = sizes{100, 300, 1000}, sizes{1, 500, 1000, 2000}, sizes{0, 5000, 10_000, 20_000}
	flag.Parse()
	b.log = os.Stderr

	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx)
	interrupted := ctx.Err() != nil
	release()
	switch {
	case err == nil:
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "Interrupted; all that was started has been stopped.")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// sizes is a flag: numbers between commas, in growing order.
type sizes []int

// String returns the flag's text.
func (s *sizes) String() string {
	words := make([]string, len(*s))
	for i, n := range *s {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}

// Set reads the flag's text.
func (s *sizes) Set(text string) error {
	*s = nil
	if text == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a size", word)
		}
		if len(*s) > 0 && n <= (*s)[len(*s)-1] {
			return fmt.Errorf("%d does not grow: objects of one size stay for the next", n)
		}
		*s = append(*s, n)
	}
	return nil
}

// run does all sweeps and writes what they found.
func (b *bench) run(ctx context.Context) error {
	if _, err := os.Stat(b.binary); err != nil {
		return fmt.Errorf("the program to measure: %w", err)
	}
	if b.against != "" {
		if _, err := os.Stat(b.against); err != nil {
			return fmt.Errorf("-against, the program to compare with: %w", err)
		}
		if b.rounds < 1 {
			return fmt.Errorf("-rounds must be above zero, is %d", b.rounds)
		}
	}
	if err := os.MkdirAll(b.out, 0o750); err != nil {
		return err
	}
	report := report{Machine: thisMachine(), Arguments: strings.Fields(b.args)}
	for _, s := range []sweep{
		{Over: overClaims, sizes: b.claims},
		{Over: overNodes, sizes: b.nodes},
		{Over: overForeign, sizes: b.foreign},
	} {
		if len(s.sizes) == 0 {
			continue
		}
		results, comparisons, err := b.sweep(ctx, s)
		if err != nil {
			return fmt.Errorf("sweep over %s: %w", s.Over, err)
		}
		report.Results = append(report.Results, results...)
		report.Against = append(report.Against, comparisons...)
	}
	report.print(os.Stdout)
	printComparisons(os.Stdout, b.against, report.Against)
	file := filepath.Join(b.out, "load")
	if err := report.writeJSON(file + ".json"); err != nil {
		return err
	}
	if err := os.WriteFile(file+".svg", []byte(plot(report.Results)), 0o600); err != nil {
		return err
	}
	fmt.Printf("\n%s.json and %s.svg have the same figures.\n", file, file)
	return nil
}
