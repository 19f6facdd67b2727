// Rasterises discs, thick lines and convex polygons, one over the other, with antialiased edges: one thread per row of
// each picture. The distance of a pixel's centre to a shape's edge gives the pixel's coverage.

// The kinds of shapes; n > 2 is a polygon of n corners. CONTINUED is a segment from the end of the previous shape.
constexpr int CONTINUED = -1, NOTHING = 0, DISC = 1, SEGMENT = 2;

constexpr float FAR = 1e30f;

FN float squared(float x, float y) { return x * x + y * y; }

// Clips x; NaN becomes `low`.
FN float between(float low, float x, float high) { return x > low ? (x < high ? x : high) : low; }

// The signed distance of (x, y) to a shape's edge, negative inside. `points` are its corners, counterclockwise for
// polygons; a polygon whose corners coincide is infinitely far away.
FN float distance(const float* points, int kind, float radius, float x, float y) {
    if (kind == DISC) return square_root(squared(x - points[0], y - points[1])) - radius;
    if (kind == SEGMENT) {
        const float along_x = points[2] - points[0], along_y = points[3] - points[1];
        const float length  = squared(along_x, along_y);
        const float ratio   = length > 0 ? ((x - points[0]) * along_x + (y - points[1]) * along_y) / length : 0.0f;
        const float t       = between(0.0f, ratio, 1.0f);
        return square_root(squared(x - points[0] - t * along_x, y - points[1] - t * along_y)) - radius;
    }
    float outside = -FAR;
    for (int corner = 0; corner < kind; ++corner) {
        const float* a = points + 2 * corner;
        const float* b = points + 2 * (corner + 1 == kind ? 0 : corner + 1);
        const float  along_x = b[0] - a[0], along_y = b[1] - a[1];
        const float  length = squared(along_x, along_y);
        if (length > 0) {
            const float to_edge = (along_y * (x - a[0]) - along_x * (y - a[1])) / square_root(length);
            outside = to_edge > outside ? to_edge : outside;
        }
    }
    return outside == -FAR ? FAR : outside;
}

// The coverage of a pixel, from 0 to 1, if its centre's distance to the shape's edge is `edge`.
FN float coverage_at(float edge) { return between(0.0f, 0.5f - edge, 1.0f); }

FN u8 blended(u8 below, u8 above, float coverage) {
    return u8(float(below) + (float(above) - float(below)) * coverage + 0.5f);
}

// Paints one row of a picture per thread: the background, then the picture's shapes in their order.
KERNEL(kernel_paint, PaintCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE(k, env) {
            const Index picture = env.index(k) / call.height;
            const float y       = float(env.index(k) % call.height) + 0.5f;
            u8*         pixels  = call.pixels + env.index(k) * call.width * 3;
            for (int x = 0; x < call.width; ++x)
                for (int c = 0; c < 3; ++c) pixels[3 * x + c] = call.background[c];
            for (Index shape = picture * call.shapes; shape < (picture + 1) * call.shapes; ++shape) {
                const int    kind   = call.kinds[shape];
                const float* bounds = call.bounds + 4 * shape;  // left, top, right, bottom
                if (kind == NOTHING || y < bounds[1] || y > bounds[3]) continue;
                const float* points = call.points + shape * call.corners * 2;
                const u8*    colour = call.colours + 3 * shape;
                const int    from   = int(between(0.0f, bounds[0], float(call.width)));
                const int    to     = int(between(0.0f, bounds[2] + 1, float(call.width)));
                for (int x = from; x < to; ++x) {
                    const float middle = float(x) + 0.5f, radius = call.radii[shape];
                    float       coverage;
                    if (kind == CONTINUED) {  // adds only the coverage beyond that of the previous segment
                        const float before = coverage_at(distance(points - 2 * call.corners, SEGMENT, radius, middle, y));
                        const float now    = coverage_at(distance(points, SEGMENT, radius, middle, y));
                        coverage           = now > before ? (now - before) / (1.0f - before) : 0.0f;
                    } else {
                        coverage = coverage_at(distance(points, kind, radius, middle, y));
                    }
                    for (int c = 0; c < 3; ++c) pixels[3 * x + c] = blended(pixels[3 * x + c], colour[c], coverage);
                }
            }
        }
    }
}
