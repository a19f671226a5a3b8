// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/plot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "perf/support/output.h"

namespace inccl::tools {
namespace {

constexpr int kPanelWidth = 400, kPanelHeight = 300;
constexpr int kLeft = 58, kRight = 12, kTop = 30, kBottom = 42;  // around the axes of a panel
constexpr int kColumns = 3;
constexpr int kLegendLine = 18, kLegendWidth = 300;

// Colours that stay apart for most eyes, and marks for where they do not.
constexpr std::array<const char*, 10> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#56b4e9", "#e69f00", "#000000", "#7f3c8d",
                                                  "#999999", "#a5aa00"};

std::string Escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '&': safe += "&amp;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

// What is smaller is fp32's own rounding and would take half of the picture.
constexpr double kLeastError = 1e-9;

bool HasPlace(const Row& row) { return std::isfinite(row.vnmse) && row.vnmse >= kLeastError; }

// Limits of the axes, the same for all panels.
struct Axes {
  double left = 0, right = 1;  // bits
  int low = 0, high = 1;       // decades of the error

  explicit Axes(const std::vector<Row>& rows) {
    double least = std::numeric_limits<double>::infinity(), most = 0, bits = 1;
    for (const Row& row : rows) {
      if (!HasPlace(row)) continue;
      least = std::min(least, row.vnmse);
      most = std::max(most, row.vnmse);
      bits = std::max(bits, row.bits);
    }
    right = std::ceil(bits / 2) * 2 + 1;
    if (most > 0) {
      low = static_cast<int>(std::floor(std::log10(least)));
      high = std::max(low + 1, static_cast<int>(std::ceil(std::log10(most))));
    }
  }

  double X(double bits) const {
    return kLeft + (bits - left) / (right - left) * (kPanelWidth - kLeft - kRight);
  }
  double Y(double error) const {
    const double part = (std::log10(error) - low) / (high - low);
    return kPanelHeight - kBottom - part * (kPanelHeight - kTop - kBottom);
  }
};

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     Escaped(text));
}

std::string Mark(size_t series, double x, double y) {
  const char* colour = kColours[series % kColours.size()];
  if (series / kColours.size() % 2 == 1) {
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\" fill=\"{}\"/>\n",
                       x - 3, y - 3, colour);
  }
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y, colour);
}

std::string Frame(const Axes& axes, const std::string& title) {
  std::string svg = Text(kPanelWidth / 2.0, kTop - 10, "middle", title);
  const double bottom = kPanelHeight - kBottom, right = kPanelWidth - kRight;
  for (int decade = axes.low; decade <= axes.high; ++decade) {
    const double y = axes.Y(std::pow(10.0, decade));
    svg += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"#ddd\"/>\n", kLeft, y, right);
    svg += Text(kLeft - 6, y + 4, "end", fmt::format("1e{}", decade));
  }
  for (int bits = 0; bits <= axes.right; bits += 2) {
    const double x = axes.X(bits);
    svg += fmt::format("<path d=\"M{:.1f} {}V{}\" stroke=\"#eee\"/>\n", x, kTop, bottom);
    svg += Text(x, bottom + 16, "middle", std::to_string(bits));
  }
  svg += fmt::format("<path d=\"M{} {}V{}H{}\" stroke=\"#333\" fill=\"none\"/>\n", kLeft, kTop,
                     bottom, right);
  svg += Text(kPanelWidth / 2.0, kPanelHeight - 8, "middle", "bits per element and phase");
  const double middle = (kTop + bottom) / 2;
  svg += fmt::format(
      "<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">"
      "error (vNMSE)</text>\n",
      middle);
  return svg;
}

using Points = std::vector<std::pair<double, double>>;

std::string Line(size_t series, Points points) {
  std::sort(points.begin(), points.end());
  std::string path, marks;
  for (const auto& [x, y] : points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    marks += Mark(series, x, y);
  }
  const char* colour = kColours[series % kColours.size()];
  const char* dash = series / kColours.size() % 2 == 1 ? " stroke-dasharray=\"4 3\"" : "";
  if (points.size() > 1) {
    path = fmt::format("<path d=\"{}\" stroke=\"{}\" fill=\"none\"{}/>\n", path, colour, dash);
  } else {
    path.clear();
  }
  return path + marks;
}

std::string TitleOf(const Row& row) { return fmt::format("{}, n = {}", row.data, row.nranks); }

std::string SeriesName(const Row& row) { return row.way.series; }

bool IsHbi(const std::string& series) { return series.starts_with("hbi"); }

template <class NameOf>
std::vector<std::string> Distinct(const std::vector<Row>& rows, NameOf name_of) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    const std::string name = name_of(row);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

std::string PlotSvg(const std::vector<Row>& rows) {
  const Axes axes(rows);
  const std::vector<std::string> panels = Distinct(rows, TitleOf);
  std::vector<Row> inside, outside;
  std::partition_copy(rows.begin(), rows.end(), std::back_inserter(inside),
                      std::back_inserter(outside), HasPlace);
  std::vector<std::string> series = Distinct(inside, SeriesName);
  std::stable_partition(series.begin(), series.end(), IsHbi);  // first in the legend
  const int columns = std::max(1, std::min<int>(kColumns, static_cast<int>(panels.size())));
  const int lines = (static_cast<int>(panels.size()) + columns - 1) / columns;
  const int per_line = std::max(1, columns * kPanelWidth / kLegendWidth);
  const int legend_lines = (static_cast<int>(series.size()) + per_line - 1) / per_line;
  const int width = columns * kPanelWidth, below = lines * kPanelHeight;
  const std::string missing = fmt::format("{}", fmt::join(Distinct(outside, SeriesName), ", "));
  const int height = below + (legend_lines + (missing.empty() ? 1 : 2)) * kLegendLine;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<title>vNMSE against bits per element and phase</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height);
  for (size_t p = 0; p < panels.size(); ++p) {
    const auto at = static_cast<int>(p);
    svg += fmt::format("<g transform=\"translate({} {})\">\n", at % columns * kPanelWidth,
                       at / columns * kPanelHeight);
    svg += Frame(axes, panels[p]);
    for (size_t s = series.size(); s-- > 0;) {  // the first one is drawn last, above the others
      Points points;
      for (const Row& row : inside) {
        if (TitleOf(row) != panels[p] || row.way.series != series[s]) continue;
        points.emplace_back(axes.X(row.bits), axes.Y(row.vnmse));
      }
      svg += Line(s, std::move(points));
    }
    svg += "</g>\n";
  }
  for (size_t s = 0; s < series.size(); ++s) {
    const auto at = static_cast<int>(s);
    const int x = 20 + at % per_line * kLegendWidth;
    const int y = below + (at / per_line + 1) * kLegendLine;
    svg += Mark(s, x, y - 4) + Text(x + 12, y, "start", series[s]);
  }
  if (!missing.empty()) {
    svg += Text(8, height - 8, "start", "without error, or outside of the axes: " + missing);
  }
  return svg + "</svg>\n";
}

Status WritePlot(const std::string& path, const std::vector<Row>& rows) {
  return perf::WriteFile(path, PlotSvg(rows));
}

}  // namespace inccl::tools
