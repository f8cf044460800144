package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Events returns the page of events. It finds them where they are made: in values of a type named event, and in calls
// of Event and Eventf of a recorder. A reason that cannot be resolved is an error.
func Events(root string) (string, error) {
	folders, err := foldersBelow(filepath.Join(root, "pkg", "controllers"))
	if err != nil {
		return "", err
	}
	var rows []string
	for _, folder := range folders {
		files, err := parseFolder(folder)
		if err != nil {
			return "", err
		}
		known := map[string]string{}
		for _, c := range constantsOf(files) {
			known[c.name] = c.value
		}
		for _, file := range files {
			found, err := eventsOf(file, known)
			if err != nil {
				return "", fmt.Errorf("%s: %w", folder, err)
			}
			rows = append(rows, found...)
		}
	}
	if len(rows) == 0 {
		return "", errors.New("there are no events")
	}
	slices.Sort(rows)
	return "# Events\n\n" + generated +
		"Reasons are API. `…` stands for what differs; a message that is only `…` is an error as it came, such as the driver's.\n\n" +
		"| Reason | Type | Message |\n|---|---|---|\n" + strings.Join(slices.Compact(rows), ""), nil
}

// eventsOf returns a table row for each event that a file makes.
func eventsOf(file *ast.File, known map[string]string) ([]string, error) {
	var rows []string
	var errs []error
	for _, decl := range file.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		ast.Inspect(function.Body, func(node ast.Node) bool {
			kind, reason, message := eventAt(node)
			if kind == nil {
				return true
			}
			reasons := textsOf(reason, function.Body, known)
			if len(reasons) == 0 {
				errs = append(errs, fmt.Errorf("cannot resolve the reason of an event in %s", function.Name.Name))
			}
			for _, r := range reasons {
				rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", r, kind.Sel.Name[len("EventType"):], cell(template(message, function.Body, known))))
			}
			return true
		})
	}
	return rows, errors.Join(errs...)
}

// eventAt returns what an event is made of, a nil kind where node makes none.
func eventAt(node ast.Node) (kind *ast.SelectorExpr, reason, message ast.Expr) {
	switch n := node.(type) {
	case *ast.CompositeLit:
		if name, ok := n.Type.(*ast.Ident); ok && name.Name == "event" {
			fields := fieldsOf(n)
			return eventType(fields["kind"]), fields["reason"], fields["text"]
		}
	case *ast.CallExpr:
		if method, ok := n.Fun.(*ast.SelectorExpr); ok && (method.Sel.Name == "Event" || method.Sel.Name == "Eventf") && len(n.Args) >= 4 {
			return eventType(n.Args[1]), n.Args[2], n.Args[3]
		}
	}
	return nil, nil, nil
}

// fieldsOf returns the values of a struct literal by field.
func fieldsOf(literal *ast.CompositeLit) map[string]ast.Expr {
	fields := map[string]ast.Expr{}
	for _, element := range literal.Elts {
		if field, ok := element.(*ast.KeyValueExpr); ok {
			if name, ok := field.Key.(*ast.Ident); ok {
				fields[name.Name] = field.Value
			}
		}
	}
	return fields
}

// eventType returns a selector such as corev1.EventTypeWarning, nil for anything else.
func eventType(expr ast.Expr) *ast.SelectorExpr {
	if selector, ok := expr.(*ast.SelectorExpr); ok && strings.HasPrefix(selector.Sel.Name, "EventType") {
		return selector
	}
	return nil
}

// textsOf returns the strings that an expression may be: itself, or all that a local variable is given in body.
func textsOf(expr ast.Expr, body *ast.BlockStmt, known map[string]string) []string {
	if text, ok := stringOf(expr, known); ok {
		return []string{text}
	}
	var texts []string
	for _, value := range assignedTo(expr, body) {
		if text, ok := stringOf(value, known); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

// assignedTo returns the values that body gives to a local variable, none if expr is not one.
func assignedTo(expr ast.Expr, body *ast.BlockStmt) []ast.Expr {
	variable, ok := expr.(*ast.Ident)
	if !ok {
		return nil
	}
	var values []ast.Expr
	ast.Inspect(body, func(node ast.Node) bool {
		assign, ok := node.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != len(assign.Rhs) || assign.Tok == token.ADD_ASSIGN {
			return true
		}
		for i, left := range assign.Lhs {
			if name, ok := left.(*ast.Ident); ok && name.Name == variable.Name {
				values = append(values, assign.Rhs[i])
			}
		}
		return true
	})
	return values
}

var verb = regexp.MustCompile(`%[+#]?[a-z]`)

// template returns the message of an event with … for each value.
func template(expr ast.Expr, body *ast.BlockStmt, known map[string]string) string {
	if call, ok := expr.(*ast.CallExpr); ok && len(call.Args) > 0 {
		expr = call.Args[0]
	}
	if text, ok := stringOf(expr, known); ok {
		return verb.ReplaceAllString(text, "…")
	}
	if sum, ok := expr.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		return template(sum.X, body, known) + template(sum.Y, body, known)
	}
	if values := assignedTo(expr, body); len(values) > 0 {
		return template(values[0], body, known)
	}
	return "…"
}
