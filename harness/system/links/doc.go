// Package links cuts and edits what clients and the nodes of any adapter say to each other, as the capabilities of package
// system ask for it, and proves it.
//
// It knows what is common to all adapters: a node has a name and a netproxy.Link to its clients. It must not import an adapter.
// An adapter hands the capabilities on, once it knows that the node is its own and that its framer knows the kind of request:
//
//	func (c *Cluster) CutLink(_ context.Context, node system.Node, mode system.CutMode, d system.Direction) (system.Injection, error) {
//		n, err := c.own(node)
//		if err != nil {
//			return nil, err
//		}
//		return links.Cut(n.link, n.name, mode, d)
//	}
package links
