package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// pair is one round: the program, and right after it the one that it is compared with, doing the same.
type pair struct{ ours, other result }

// comparison is what the rounds of one case say.
type comparison struct {
	Over   dimension `json:"over"`
	Size   int       `json:"size"`
	Rounds int       `json:"rounds"`
	Ratios []ratio   `json:"ratios"`
}

// ratio is a figure of ours divided by that of the other program in the same round: the median of all rounds, and
// the spread. Rounds in which the other one's figure was zero do not count; without any other all three are zero.
type ratio struct {
	Of     string  `json:"of"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// compared are the figures that are compared.
var compared = []struct {
	of    string
	value func(result) float64
}{
	{"CPU of the start", func(r result) float64 { return r.StartCPU }},
	{"CPU of a create", func(r result) float64 { return r.CreateCPU }},
	{"CPU of a delete", func(r result) float64 { return r.DeleteCPU }},
	{"memory after start", func(r result) float64 { return float64(r.SyncedBytes) }},
	{"peak memory", func(r result) float64 { return float64(r.PeakBytes) }},
	{"requests a volume", func(r result) float64 { return r.RequestsPerVolume }},
	{"volumes made a second", func(r result) float64 { return r.VolumesPerSecond }},
	{"volumes deleted a second", func(r result) float64 { return r.DeletionsPerSec }},
}

// compare needs at least one round.
func compare(rounds []pair) comparison {
	c := comparison{Over: rounds[0].ours.Over, Size: rounds[0].ours.Size, Rounds: len(rounds)}
	for _, figure := range compared {
		var ratios []float64
		for _, round := range rounds {
			if other := figure.value(round.other); other != 0 {
				ratios = append(ratios, figure.value(round.ours)/other)
			}
		}
		r := ratio{Of: figure.of}
		if len(ratios) > 0 {
			slices.Sort(ratios)
			r.Median = (ratios[(len(ratios)-1)/2] + ratios[len(ratios)/2]) / 2
			r.Min, r.Max = ratios[0], ratios[len(ratios)-1]
		}
		c.Ratios = append(c.Ratios, r)
	}
	return c
}

func printComparisons(out io.Writer, other string, all []comparison) {
	for _, c := range all {
		fmt.Fprintf(out, "\nRatios to %s with %d %s, taken in turn, rounds: %d\n\n", other, c.Size, c.Over, c.Rounds)
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "figure\tmedian\tfrom\tto\t")
		for _, r := range c.Ratios {
			fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t\n", r.Of, r.Median, r.Min, r.Max)
		}
		_ = table.Flush() // out is the terminal.
	}
}
