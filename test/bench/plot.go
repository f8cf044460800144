package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Sizes of the plot in pixels.
const (
	panelWidth, panelHeight = 300, 190
	left, right             = 55, 15
	top, bottom             = 40, 45
)

// series is one line of a panel.
type series struct {
	name, color string
	of          func(result) float64
}

// rows are the panels of each sweep, from top to bottom.
var rows = []struct {
	unit  string
	lines []series
}{
	{"CPU ms a volume", []series{
		{"create", "#1f77b4", func(r result) float64 { return r.CreateCPU }},
		{"delete", "#ff7f0e", func(r result) float64 { return r.DeleteCPU }},
	}},
	{"MiB", []series{
		{"peak", "#d62728", func(r result) float64 { return mebibytes(r.PeakBytes) }},
		{"after sync", "#2ca02c", func(r result) float64 { return mebibytes(r.SyncedBytes) }},
	}},
	{"requests a volume", []series{
		{"requests", "#9467bd", func(r result) float64 { return r.RequestsPerVolume }},
	}},
}

// plot draws cost against size: a column for each sweep, a row for each kind of cost. It returns an SVG document.
func plot(results []result) string {
	var sweeps [][]result
	for i, r := range results {
		if i == 0 || results[i-1].Over != r.Over {
			sweeps = append(sweeps, nil)
		}
		sweeps[len(sweeps)-1] = append(sweeps[len(sweeps)-1], r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n",
		max(len(sweeps), 1)*panelWidth, len(rows)*panelHeight)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for column, points := range sweeps {
		for row, kind := range rows {
			fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", column*panelWidth, row*panelHeight)
			drawPanel(&b, points, kind.unit, kind.lines)
			b.WriteString("</g>\n")
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// drawPanel draws one diagram with its origin at zero.
func drawPanel(b *strings.Builder, points []result, unit string, lines []series) {
	maxX, maxY := 0.0, 0.0
	for _, p := range points {
		maxX = max(maxX, float64(p.Size))
		for _, l := range lines {
			maxY = max(maxY, l.of(p))
		}
	}
	maxX, maxY = max(maxX, 1), ceiling(maxY)
	x := func(v float64) float64 { return left + v/maxX*(panelWidth-left-right) }
	y := func(v float64) float64 { return panelHeight - bottom - v/maxY*(panelHeight-top-bottom) }
	text := func(px, py float64, anchor, color, words string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", px, py, anchor, color, html.EscapeString(words))
	}
	text(left, 16, "start", "black", unit)
	text(panelWidth/2+left/2, panelHeight-10, "middle", "black", string(points[0].Over))
	for _, share := range []float64{0, 0.5, 1} {
		fmt.Fprintf(b, `<path d="M%.1f %.1fH%d" stroke="#ddd"/>`+"\n", x(0), y(share*maxY), panelWidth-right)
		text(x(0)-5, y(share*maxY)+4, "end", "#444", fmt.Sprintf("%.3g", share*maxY))
		text(x(share*maxX), panelHeight-bottom+15, "middle", "#444", fmt.Sprintf("%.0f", share*maxX))
	}
	for i, l := range lines {
		path := make([]string, len(points))
		for j, p := range points {
			px, py := x(float64(p.Size)), y(l.of(p))
			path[j] = fmt.Sprintf("%.1f,%.1f", px, py)
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", px, py, l.color)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(path, " "), l.color)
		text(float64(left+i*80), 30, "start", l.color, l.name)
	}
}

// ceiling returns the next of 1, 2, 3, 5, 8 times a power of ten, and 1 for zero.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 3, 5, 8} {
		if v <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}
